"""A site's connection to its coordinator, and the agent that answers over it."""
