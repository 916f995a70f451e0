"""Which files import each other, imports inside functions counted, those for type checkers not."""

import grimp
import networkx as nx


def test_no_circle_of_imports_has_more_than_two_files():
    graph = grimp.build_graph(
        "lab", "probes", "apps", exclude_type_checking_imports=True, cache_dir=None
    )
    imports = nx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    assert imports.number_of_edges() > 1000
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports)]
    assert [circle for circle in circles if len(circle) > 2] == []
