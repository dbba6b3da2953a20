"""What needs an API server, our webhook, controller and scheduler, and no node."""
