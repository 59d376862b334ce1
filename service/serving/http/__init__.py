"""The HTTP side of serving.

Read `app` first: every request goes through it. `predict` answers predictions, whose bodies `v1_predictions` reads and
writes, `v1_posts` posts of events and labels, and `v1` everything else about models. `endpoint` is a route without
FastAPI. `problems` words errors, `openapi` and `swagger_ui` document all of it. Below the application, `limits` guards
connections and bodies, and `server` runs uvicorn.
"""
