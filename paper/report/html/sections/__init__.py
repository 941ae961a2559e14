"""The sections of the page, in their order: a file each."""

from paper.report.html.sections import (
    block,
    faithful,
    fig1,
    fig3,
    fig4,
    fig5,
    generate,
    lm,
    op,
    ranks,
    recall,
    table1,
    table3,
    table4,
)

MODULES = (
    fig1,
    fig3,
    table1,
    table3,
    table4,
    fig4,
    fig5,
    faithful,
    lm,
    recall,
    generate,
    op,
    block,
    ranks,
)
SECTIONS = tuple(module.SECTION for module in MODULES)
