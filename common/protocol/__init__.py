"""What coordinator and hospitals say to each other, and how it travels."""
