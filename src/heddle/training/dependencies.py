"""What routes of training ask the framework for."""

from typing import Annotated

from fastapi import Depends

from heddle.http import Service
from heddle.training.service import Training

TrainingDep = Annotated[Training, Depends(Service("training"))]
