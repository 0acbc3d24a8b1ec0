"""A hook for coding agents: does what the tools returned contradict the last answer? docs/server.md shows how to set it up.

Reads the hook's JSON on standard input (Claude Code's Stop, SubagentStop and PostToolUse; or {"completion", "evidence"}), asks
`hf-factuality serve` (or the library, with --verifier), and prints a decision. If it cannot ask, it says so in one line and
the agent goes on.
"""

import argparse
import json
import os
import sys
import urllib.request
from pathlib import Path


READ = 8 << 20  # bytes of a transcript, from its end
SENT, PASSAGES, LONGEST = 200_000, 500, 50_000  # characters of the results, how many, and characters of the answer


def texts(content):
    """The texts of a message or of a tool's result, which may be a text, a list of blocks or an object."""
    blocks = content if isinstance(content, list) else [content]
    found = [
        block.get("text", json.dumps(block)) if isinstance(block, dict) else str(block) for block in blocks if block
    ]
    return "\n".join(text for text in found if isinstance(text, str)).encode("utf-8", "replace").decode()


def read_transcript(path):
    """The last answer in a transcript of JSON Lines, and what tools returned, oldest first."""
    answer, results = "", []
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - READ))
        for line in file:
            try:
                entry = json.loads(line)
                message, content = entry["message"], entry["message"]["content"]
            except (ValueError, KeyError, TypeError):  # the first line may be cut, others are no messages
                continue
            blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
            done = [it for it in blocks if it.get("type") == "tool_result" and not it.get("is_error")]
            results += [texts(block.get("content")) for block in done]  # a failure often repeats what was asked
            if message.get("role") == "assistant":
                said = content if isinstance(content, str) else texts([b for b in blocks if b.get("type") == "text"])
                answer = said or answer
    return answer, results


def request_of(hook):
    """What is to be verified, or `None` if there is nothing."""
    answer, results = hook.get("completion") or hook.get("last_assistant_message") or "", hook.get("evidence") or []
    path = hook.get("agent_transcript_path") or hook.get("transcript_path")
    if path and os.path.isfile(path):
        said, results = read_transcript(path)
        answer = answer or said
    results = [texts(each) for each in (results if isinstance(results, list) else [results])]
    if hook.get("tool_response"):
        results.append(texts(hook["tool_response"]))
    kept, left = [], SENT
    for text in reversed([text for text in results if text.strip()][-PASSAGES:]):  # the latest first
        kept.append(text[:left])
        left -= len(kept[-1])
        if left <= 0:
            break
    return {"completion": answer[:LONGEST], "evidence": kept} if answer.strip() and kept else None


def ask_server(address, request, seconds):
    key = os.environ.get("HF_FACTUALITY_SERVER_KEY")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    body = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")  # a model may write half surrogates
    sent = urllib.request.Request(f"{address.rstrip('/')}/v1/verify", body, headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(sent, timeout=seconds) as answer:
        return json.load(answer)["rows"][0]["verification"]["spans"]


def ask_library(verifier, request):
    import hf_factuality

    (row,) = hf_factuality.verify([request], verifier=verifier).rows
    return [{**span.to_dict(), "text": span.text(row.completion)} for span in row.verification.spans]


def decide(hook, spans):
    """The decision as the agent reads it; nothing is decided on what could not be judged."""
    wrong = [span for span in spans if span["label"] == "contradicted"]
    told = [
        f'"{span["claim"] or span["text"]:.200}" (evidence: "{span["evidence"] or "":.200}")' for span in wrong[:5]
    ]
    reason = " ".join(f"The results of tools contradict {len(wrong)} statements: {'; '.join(told)}".split())
    event = hook.get("hook_event_name")
    if not wrong:
        return {} if event else {"decision": "allow"}
    if event == "PostToolUse":
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": reason}}
    return {"systemMessage": reason} if hook.get("stop_hook_active") else {"decision": "block", "reason": reason}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", default="http://127.0.0.1:8321", help="address of hf-factuality serve")
    parser.add_argument("--verifier", help="judge with the library in this process, by this verifier, instead")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the server may take")
    args, decision = parser.parse_args(), {}
    try:
        hook = json.load(sys.stdin)
        if request := request_of(hook):
            library = args.verifier is not None
            spans = ask_library(args.verifier, request) if library else ask_server(args.server, request, args.seconds)
            decision = decide(hook, spans)
    except Exception as error:  # a hook that fails must not stop the agent
        why = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"verify_hook: the answer was not checked: {why:.300}", file=sys.stderr)
    print(json.dumps(decision))


if __name__ == "__main__":
    main()
