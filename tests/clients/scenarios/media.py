"""Pictures, sound, text content and views: as op input, as op output, published."""

import base64
import datetime
import hashlib
import io
import random
import wave
from pathlib import Path

import weave
from common import FOLDER, report, start
from PIL import Image

client = start()


def sound(seconds: float = 0.1) -> Path:
    """A short WAV file."""
    path = Path(FOLDER) / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(int(8000 * seconds) * 2))
    return path


picture = Image.new("RGB", (40, 30), (200, 30, 60))


@weave.op
def mirror(image: Image.Image) -> Image.Image:
    """A picture in, a picture out."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@weave.op
def write(text: str) -> weave.Content:
    """Content out, with a view on the call."""
    weave.set_view("page", f"# {text}", extension="md")
    return weave.Content.from_text(f"<p>{text}</p>", mimetype="text/html")


@weave.op
def listen(audio: weave.Audio) -> int:
    """Sound in."""
    return len(audio.data)


@weave.op
def describe(url: str, note: str) -> str:
    """Long base64 becomes a file on the server; long text stays text."""
    return note[::-1]


noise = Image.frombytes("RGB", (64, 64), random.Random(1).randbytes(64 * 64 * 3))
buffer = io.BytesIO()
noise.save(buffer, "PNG")
data_url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
long_text = "ünïcode and so on, " * 20_000

mirrored = mirror.call(picture)[1].id
written = write.call("hello")[1].id
tone = sound()
heard_size, heard_call = listen.call(weave.Audio.from_path(tone))
heard = heard_call.id

described = describe.call(data_url, long_text)[1].id

blob = bytes(range(256)) * 400
content_ref = weave.publish(weave.Content.from_bytes(blob, mimetype="application/pdf"), name="blob")
content = weave.ref(content_ref.uri()).get()
picture_ref = weave.publish(picture, name="picture")
picture_seen = weave.ref(picture_ref.uri()).get()
moment = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=datetime.UTC)
moment_ref = weave.publish({"at": moment}, name="moment")
client.flush()

mirrored_seen = client.get_call(mirrored)
written_seen = client.get_call(written)
heard_seen = client.get_call(heard)
described_seen = client.get_call(described)
report(
    described=described,
    noise_sha=hashlib.sha256(buffer.getvalue()).hexdigest(),
    noise_back=hashlib.sha256(described_seen.inputs["url"].data).hexdigest(),
    noise_type=described_seen.inputs["url"].mimetype,
    long_text_back=described_seen.inputs["note"] == long_text,
    long_output_back=described_seen.output == long_text[::-1],
    mirrored=mirrored,
    image_in=[*mirrored_seen.inputs["image"].size, mirrored_seen.inputs["image"].getpixel((0, 0))],
    image_out=[*mirrored_seen.output.size],
    written=written,
    html=written_seen.output.data.decode(),
    html_type=written_seen.output.mimetype,
    views=sorted(written_seen.summary["weave"]["views"]),
    heard=heard,
    heard_size=heard_size,
    heard_back=len(heard_seen.inputs["audio"].data),
    tone_sha=hashlib.sha256(tone.read_bytes()).hexdigest(),
    blob_same=content.data == blob,
    blob_type=content.mimetype,
    blob_sha=hashlib.sha256(blob).hexdigest(),
    picture=[*picture_seen.size, picture_seen.getpixel((5, 5))],
    moment=weave.ref(moment_ref.uri()).get()["at"].isoformat(),
)
