"""The program that runs beside the user: coordination, enrolment, the run's files, the report."""
