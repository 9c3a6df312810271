"""The numbers by which Flower tells why a message has no content."""

CLIENT_APP_RAISED_EXCEPTION = 2  # the site's program says why
MESSAGE_UNAVAILABLE = 3  # what came cannot be used
NODE_UNAVAILABLE = 5  # the site left or lost its connection
RUN_OVER = 101  # ours: the site cannot answer this run any more, only a new one
UNDECIDED = 100  # ours: a person at the site has yet to decide about the study
