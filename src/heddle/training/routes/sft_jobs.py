"""`/v1/preview/sft-training-jobs`: supervised jobs; their state and events are those of any training job."""

from fastapi import Request, Response

from heddle.http import BearerWriter, answer, group, inlined_body, validated_body
from heddle.training.bodies.requests import CreateSftJob
from heddle.training.dependencies import TrainingDep

router = group("Training")


@router.post("/v1/preview/sft-training-jobs", response_model=None, openapi_extra=inlined_body(CreateSftJob))
async def create_sft_job(request: Request, caller: BearerWriter, training: TrainingDep) -> Response:
    """Queue a supervised job on chat rows: a file's digest, a dataset's ref, or an address that the settings allow."""
    wanted = await validated_body(CreateSftJob, request)
    training.require()
    return answer({"id": (await training.jobs.create_supervised(wanted, caller)).id})
