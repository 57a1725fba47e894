"""Renders a Helm chart with several sets of values, and validates the documents.

Runs in the environment of Helm's library, below `.venv/clients`: a JSON object with `chart`,
`sets`, each the name of a release and its values, and `versions` on stdin, a list with an answer
for each set on stdout.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError


def main() -> None:
    given = json.load(sys.stdin)
    chart = Chart.load(given["chart"])
    answers = [
        answer(chart, given["chart"], release, values, given["versions"])
        for release, values in given["sets"]
    ]
    json.dump(answers, sys.stdout)


def answer(
    loaded: Chart, chart: str, release: str, values: dict[str, Any], versions: list[str]
) -> dict[str, Any]:
    """`refused` with Helm's message; or the rendered documents and notes, the findings of `helm
    lint`, and the documents that each version of Kubernetes rejects.
    """
    try:
        loaded.validate_schema(loaded.merge_values(values))
        rendered = loaded.render(values, name=release, namespace="llm")
    except HelmError as error:
        return {"refused": str(error)}
    notes = [text for path, text in rendered.items() if path.endswith("NOTES.txt")]
    documents = [
        document
        for path, text in rendered.items()
        if not path.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return {
        "documents": documents,
        "notes": "".join(notes),
        "findings": lint(chart, values=values, strict=True)["messages"],
        "rejected": [
            (f"{document['apiVersion']} {document['kind']}", version, reason)
            for version in versions
            for document in [*documents, *parts_of_custom_resources(documents)]
            if (reason := rejection(document, version))
        ],
    }


def parts_of_custom_resources(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What Kubernetes' schemas know of them: the metadata, as a ConfigMap's, and each template of
    pods, as a pod.
    """
    for document in documents:
        if document["apiVersion"].partition("/")[0] not in ("v1", "apps"):
            yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
            for template in templates(document["spec"]):
                yield {"apiVersion": "v1", "kind": "Pod", **template}


def templates(part: Any) -> Iterator[dict[str, Any]]:
    """All templates of pods in a part of a document."""
    if isinstance(part, list):
        for each in part:
            yield from templates(each)
    elif isinstance(part, dict) and "containers" in part.get("spec", {}):
        yield part
    elif isinstance(part, dict):
        for each in part.values():
            yield from templates(each)


def rejection(document: dict[str, Any], version: str) -> str | None:
    """None if the document is valid."""
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return "no schema"
    except kubernetes_validate.ValidationError as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
