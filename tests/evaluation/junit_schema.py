"""The rules of the two schemas of JUnit's XML that readers go by, as far as they are public, written out by hand.

The strict one describes what Ant's task writes: attributes that every suite has, the order of its parts, one result at most in a
test case. Jenkins's is laxer in these, and has its own list of attributes. A file has to keep both.
"""

import re
from xml.etree import ElementTree


# Attribute: whether it is required, and its form.
TEXT, SOME, INT = r"(?s).*", r"(?s).*\S.*", r"\d+"
DECIMAL, TIME = r"\d+(\.\d+)?", r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}"
ATTRIBUTES = {
    "testsuites": {},
    "testsuite": {
        "id": (True, INT), "package": (True, SOME), "name": (True, SOME), "timestamp": (True, TIME),
        "hostname": (True, SOME), "tests": (True, INT), "failures": (True, INT), "errors": (True, INT),
        "skipped": (False, INT), "time": (True, DECIMAL),
    },
    "properties": {},
    "property": {"name": (True, SOME), "value": (True, TEXT)},
    "testcase": {"name": (True, TEXT), "classname": (True, TEXT), "time": (True, DECIMAL)},
    "failure": {"type": (True, TEXT), "message": (False, TEXT)},
    "error": {"type": (True, TEXT), "message": (False, TEXT)},
    "skipped": {"type": (False, TEXT), "message": (False, TEXT)},
    "system-out": {},
    "system-err": {},
}  # fmt: skip
# The tags of the children, joined with spaces.
CHILDREN = {
    "testsuites": r"(testsuite ?)*",
    "testsuite": r"properties (testcase )*system-out system-err",
    "properties": r"(property ?)*",
    "testcase": r"(skipped|error|failure)?",
}
WITH_TEXT = {"failure", "error", "skipped", "system-out", "system-err"}


def problems(data):
    """What is wrong with a file, in words."""
    root = ElementTree.fromstring(data)
    found = [] if root.tag == "testsuites" else [f"the root is {root.tag}"]
    for element in root.iter():
        if element.tag not in ATTRIBUTES:
            found.append(f"unknown element {element.tag}")
            continue
        known = ATTRIBUTES[element.tag]
        found += [f"{element.tag} has {name}" for name in element.attrib if name not in known]
        for name, (required, form) in known.items():
            value = element.get(name)
            if value is None:
                found += [f"{element.tag} lacks {name}"] if required else []
            elif not re.fullmatch(form, value):
                found.append(f"{element.tag} {name}={value!r}")
        children = " ".join(child.tag for child in element)
        if not re.fullmatch(CHILDREN.get(element.tag, ""), children):
            found.append(f"{element.tag} holds {children!r}")
        if element.tag not in WITH_TEXT and (element.text or "").strip():
            found.append(f"{element.tag} holds text")
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        counts = {"tests": len(cases), "failures": len(suite.findall("testcase/failure"))}
        counts |= {"errors": len(suite.findall("testcase/error")), "skipped": len(suite.findall("testcase/skipped"))}
        found += [f"{name} is {suite.get(name)}, not {n}" for name, n in counts.items() if suite.get(name) != str(n)]
    ids = [suite.get("id") for suite in root.iter("testsuite")]
    return found + (["two suites have one id"] if len(set(ids)) < len(ids) else [])
