# Public names, which load on first use.
from hf_factuality.report.page import (
    ReportSample as ReportSample,
    render_report as render_report,
    write_report as write_report,
)
from hf_factuality.report.painting import escape as escape, paint as paint
