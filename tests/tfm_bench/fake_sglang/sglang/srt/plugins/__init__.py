def load_plugins():
    """No plugin is installed."""
