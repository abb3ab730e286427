"""Sending e-mail with retries: a mail server that is down or says "not now" costs time, never a mail.

In this directory, with a server running (`make run`) and a mail server to talk to (SMTP_HOST and SMTP_PORT):

    holdfast worker email_with_retries:app
    python email_with_retries.py ada@example.org

What can go wrong, and what the handler does about it:

    no connection, a time-out      raises: the server retries with growing delays (1 s, 2 s, 4 s, … up to an hour)
    4xx "try again later"          raises RetryAfter: the mail server wants a pause of its own choice
    5xx "no such mailbox"          raises GiveUp: no attempt can succeed, so it is a dead letter at once

A worker that dies after the mail went out and before it could say so sends it again: that is "at least once". The
Message-ID is the same in every attempt, and many mail systems show a repeated one only once.
"""

import os
import smtplib
import sys
from email.message import EmailMessage

from holdfast.client import GiveUp, Holdfast, RetryAfter, TaskFailed, current_task

SMTP_HOST = os.environ.get("SMTP_HOST", "localhost")
SMTP_PORT = int(os.environ.get("SMTP_PORT", "1025"))
SMTP_TIMEOUT_S = 10.0
LATER_S = 1.0  # short, so that there is something to see; minutes are usual

app = Holdfast()


@app.task(queue="mail", max_attempts=8)
def send_mail(to: str, subject: str, text: str) -> str:
    task = current_task()
    print(f"attempt {task.attempt}: mail to {to}", flush=True)
    message = EmailMessage()
    message["From"] = "holdfast@example.org"
    message["To"] = to
    message["Subject"] = subject
    message["Message-ID"] = f"<{task.idempotency_key}@example.org>"
    message.set_content(text)
    try:
        with smtplib.SMTP(SMTP_HOST, SMTP_PORT, timeout=SMTP_TIMEOUT_S) as smtp:
            smtp.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, answer = error.recipients[to]
        raise refusal(code, answer) from error
    except smtplib.SMTPResponseException as error:
        raise refusal(error.smtp_code, error.smtp_error) from error
    print(f"sent to {to}", flush=True)
    return str(message["Message-ID"])


def refusal(code: int, answer: bytes | str) -> GiveUp | RetryAfter:
    """What an answer of the mail server means for the task."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    if code >= 500:
        return GiveUp(f"{code} {text}")
    return RetryAfter(LATER_S, f"{code} {text}")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python email_with_retries.py ADDRESS", file=sys.stderr)
        return 2
    handle = send_mail.enqueue(sys.argv[1], subject="Hello", text="This mail was not lost on its way.")
    print(f"accepted as task {handle.id}: from here on it will not be lost", flush=True)
    try:
        message_id = handle.result(timeout=120)
    except TaskFailed as failed:
        print(f"given up: {failed.error_message}")
        return 1
    print(f"sent as {message_id} after {handle.info().failures} failed attempts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
