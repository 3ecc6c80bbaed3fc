"""Policies of robots, as LeRobot writes them: networks, statistics of observations and actions."""
