"""The servers with which predictions are compared: `python bench/routes.py constant|river PORT`."""

import sys
from collections.abc import Hashable
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

PATH = "/v1/models/{name}/predict"
ANSWER = b'{"model":"m","version":1,"ahead":0,"label":1,"score":3.45,"unknown_features":0}'


def constant() -> FastAPI:
    """An application that reads the body of a request and returns a constant."""
    app = FastAPI()

    @app.post(PATH)
    async def predict(name: str, request: Request) -> Response:  # noqa: ARG001
        await request.body()
        return Response(ANSWER, media_type="application/json")

    return app


class Body(BaseModel):
    """The body of a request."""

    features: dict[str, float]


def river() -> FastAPI:
    """An application with River's perceptron, as a user might serve it."""
    from river.linear_model import Perceptron

    app, model = FastAPI(), Perceptron()
    for i in range(100):
        model.learn_one({f"n{j}": (i * j % 7) - 3.0 for j in range(20)}, bool(i % 2))

    @app.post(PATH)
    async def predict(name: str, body: Body) -> dict[str, object]:  # noqa: ARG001
        return {"model": "m", "label": model.predict_one(cast(dict[Hashable, Any], body.features))}

    return app


if __name__ == "__main__":
    kind, port = sys.argv[1:]
    app = {"constant": constant, "river": river}[kind]()
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", access_log=False, log_level="warning")
