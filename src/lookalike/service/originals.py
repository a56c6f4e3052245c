"""A picture at full size, as a new file of bare pixels: nothing its camera or its owner wrote into it comes along."""

from __future__ import annotations

from fastapi import Response

from lookalike.searching import Index
from lookalike.searching.rows import box_of
from lookalike.store import Record

KINDS = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG": "image/png",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
    b"BM": "image/bmp",
    b"II*\0": "image/tiff",
    b"MM\0*": "image/tiff",
}


def original(index: Index, record: Record, *, keep_metadata: bool) -> Response:
    data = index.open_bytes(record)
    if keep_metadata:
        kind = next((kind for start, kind in KINDS.items() if data.startswith(start)), "application/octet-stream")
        # Whatever else the file may be read as, a browser only ever saves it or shows it as this kind.
        headers = {"Content-Disposition": "attachment", "Cache-Control": "private, no-cache"}
        return Response(data, media_type=kind, headers=headers)
    import simplejpeg

    from lookalike.data import decode

    pixels = decode(data, box=box_of(record.payload))
    jpeg = simplejpeg.encode_jpeg(pixels, quality=95, colorspace="RGB", colorsubsampling="444")
    return Response(bytes(jpeg), media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})
