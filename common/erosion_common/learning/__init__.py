"""Models and the local training that both the simulator and a hospital run."""
