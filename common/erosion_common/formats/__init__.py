"""Files that one part of the program writes and another reads: each has one owner here."""
