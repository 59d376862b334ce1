"""What the service shows of itself. Imports no room: it is handed callables."""
