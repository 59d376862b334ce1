"""The application, over a socket or without one."""
