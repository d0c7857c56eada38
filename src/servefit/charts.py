"""Every figure, one place: data -> a chart specification."""
