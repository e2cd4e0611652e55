"""Run untrusted programs in a jail and judge them on the host, where they cannot reach."""

from stepcredit.sandbox.core import Sandbox, SandboxUnavailable, open_sandbox
from stepcredit.sandbox.files import grade_file
from stepcredit.sandbox.judge import TestResult, Verdict
from stepcredit.sandbox.selftest import BackendReport, probe

__all__ = [
    "BackendReport",
    "Sandbox",
    "SandboxUnavailable",
    "TestResult",
    "Verdict",
    "grade_file",
    "open_sandbox",
    "probe",
]
