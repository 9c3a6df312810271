"""An app that knows nothing of this project but its strategy."""
