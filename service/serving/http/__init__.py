"""The HTTP side of serving.

Read `app` first: every request goes through it. `endpoint` has routes without FastAPI, as for predictions, and reads
their bodies. `v1_posts` answers posts of events and labels, and `v1` everything else about models. `problems` words
errors, and `openapi` documents all of it. Below the application, `server` runs uvicorn with guards on connections.
"""
