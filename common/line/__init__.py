"""What both ends of the line share: frames, and how a message becomes frames."""
