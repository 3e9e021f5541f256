"""The tables, figures and pages of studies."""
