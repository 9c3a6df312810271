"""A site's part in its enrolment: its own key, and installing what the coordinator sends."""
