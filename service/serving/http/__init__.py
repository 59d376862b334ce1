"""The HTTP side of serving.

Read `app` first: it is what every request goes through. `predict` answers predictions and `v1` everything else about
models. `auth` checks tokens, `problems` words errors, `openapi` and `swagger_ui` document all of it. Below the
application, `limits` guards connections and bodies, and `server` runs uvicorn.
"""
