"""The site's tamper-evident log of everything that it sent."""
