"""What routes of inference ask the framework for."""

from typing import Annotated

from fastapi import Depends

from heddle.http import Service
from heddle.inference.service import Inference

InferenceDep = Annotated[Inference, Depends(Service("inference"))]
