"""The results of studies: rows, tables, findings, figures and pages."""
