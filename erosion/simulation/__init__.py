"""A federation on one machine: as processes (the testbed), or in one program (the simulator)."""
