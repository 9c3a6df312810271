"""The other systems that a round of ours is measured against; each file offers `measure`."""
