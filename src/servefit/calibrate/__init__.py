"""Runs -> what one engine step costs here, with residuals and the measured domain."""
