"""The coordinator's program: coordination, enrolment, the run's files, the report."""
