"""The messages between coordinator and hospitals, and their encoding."""
