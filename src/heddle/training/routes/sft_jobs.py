"""`/v1/preview/sft-training-jobs`: supervised jobs; their state and events are those of any training job."""

from fastapi import Request, Response

from heddle.http import BearerWriter, Services, answer, group, inlined_body, validated_body
from heddle.training.bodies.requests import CreateSftJob

router = group("Training")


@router.post("/v1/preview/sft-training-jobs", response_model=None, openapi_extra=inlined_body(CreateSftJob))
async def create_sft_job(request: Request, caller: BearerWriter, house: Services) -> Response:
    """Queue a supervised job on chat rows: a file's digest, a dataset's ref, or an address that the settings allow."""
    wanted = await validated_body(CreateSftJob, request)
    house.training.require()
    return answer({"id": (await house.training.jobs.create_supervised(wanted, caller)).id})
