"""Reads one answer of the embeddings endpoint as it arrives. Computes; never touches a socket."""

from benchmarks.peers.event_stream import BadResponse, ChunkedBody, Head

_VECTOR = b'"embedding":'


class VectorReader:
    """A whole answer, whose length its head tells or whose chunks do."""

    __slots__ = (
        "_batch",
        "_begun",
        "_body",
        "_chunked",
        "_head",
        "_length",
        "chunks",
        "finished",
        "tokens",
    )

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._head = Head()
        self._begun = False  # the head is whole
        self._chunked: ChunkedBody | None = None
        self._length: int | None = None
        self._body = bytearray()
        self.chunks = 0
        self.tokens: int | None = None
        self.finished = False

    def feed(self, data: bytes) -> int:
        """Take bytes; return 1 where they end the answer."""
        if not self._begun:
            fields = self._head.feed(data)
            if fields is None:
                return 0
            self._begun, data = True, self._head.rest
            if "content-length" in fields:
                self._length = int(fields["content-length"])
            else:
                self._chunked = ChunkedBody()
        self._body += self._chunked.feed(data) if self._chunked is not None else data
        whole = len(self._body) == self._length if self._chunked is None else self._chunked.finished
        if whole:
            self._finish()
        return self.chunks

    def _finish(self) -> None:
        found = self._body.count(_VECTOR)
        if found != self._batch:
            raise BadResponse(
                f"{found} vectors for {self._batch} texts: {bytes(self._body[:300])!r}"
            )
        self.finished = True
        self.chunks = 1
