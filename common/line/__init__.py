"""The part of the line that both ends share: frames, and messages as frames."""
