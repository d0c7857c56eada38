"""Why is it slow: slow to start, or slow to type? Rules with evidence."""
