# Public names, which load on first use.
from hf_factuality.report.page import (
    ReportSample as ReportSample,
    render_report as render_report,
    write_report as write_report,
)
from hf_factuality.report.painting import escape as escape, paint as paint
from hf_factuality.report.stored import (
    OUTCOME_MEANINGS as OUTCOME_MEANINGS,
    StoredCompletion as StoredCompletion,
    outcome_verification as outcome_verification,
    read_completions as read_completions,
    store_completions as store_completions,
    stored_samples as stored_samples,
    write_before_and_after as write_before_and_after,
)
