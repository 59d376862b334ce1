"""The HTTP side of serving.

Read `app` first: every request goes through it. `endpoint` has routes without FastAPI, as for predictions, and reads
their bodies. `v1` answers posts of events and labels, and all requests about models. `problems` words errors, and
`openapi` documents all of it. Below the application, `server` runs uvicorn with guards on connections.
"""
