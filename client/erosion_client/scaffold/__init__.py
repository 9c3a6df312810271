"""First drafts of study and site files, made from a hospital's table."""
