"""The servers that predictions are measured against: `python bench/routes.py constant|river PORT`."""

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
    """Reads its body and returns a constant."""
    app = FastAPI()

    @app.post(PATH)
    async def predict(name: str, request: Request) -> Response:  # noqa: ARG001
        await request.body()
        return Response(ANSWER, media_type="application/json")

    return app


class Body(BaseModel):
    """A request."""

    features: dict[str, float]


def river() -> FastAPI:
    """River's perceptron, as its users serve it."""
    from river.linear_model import Perceptron

    app, model = FastAPI(), Perceptron()
    for i in range(100):
        model.learn_one({f"n{j}": (i * j % 7) - 3.0 for j in range(20)}, bool(i % 2))

    @app.post(PATH)
    async def predict(name: str, body: Body) -> dict[str, object]:  # noqa: ARG001
        return {"model": "m", "label": model.predict_one(cast(dict[Hashable, Any], body.features))}

    return app


if __name__ == "__main__":
    which, port = sys.argv[1:]
    made = {"constant": constant, "river": river}[which]()
    uvicorn.run(made, port=int(port), loop="uvloop", http="httptools", access_log=False, log_level="warning")
