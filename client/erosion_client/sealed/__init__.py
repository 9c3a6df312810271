"""A hospital's part in sealed rounds: the rules that it keeps."""
