//! The pictures as one file.

use std::fmt::Write;

use super::svg::{Picture, STYLE, Table, escaped};
use super::{devices, findings, flow, paths, space, subvols, time};
use crate::map::Map;
use crate::text::human;

/// Notes that a picture has room for.
const NOTES_MAX: usize = 20;

fn pictures(map: &Map) -> Vec<Picture> {
    let mut all = vec![devices::devices(map), devices::groups(map)];
    all.extend(space::all(map));
    if map.sharing.subvols.iter().any(|subvol| subvol.reached.is_some()) {
        all.extend([subvols::tree(map), subvols::matrix(map), flow::flow(map), paths::treemap(map)]);
    }
    all.extend([time::generations(map), findings::findings(map)]);
    all
}

fn title(map: &Map) -> String {
    let name = if map.label.is_empty() { &map.uuid } else { &map.label };
    format!("Map of {name}")
}

fn facts(map: &Map) -> String {
    format!(
        "UUID {}, generation {}; {} of data in {} extents, {} of metadata in {} blocks of {}",
        map.uuid,
        map.generation,
        human(map.space.data),
        map.space.data_extents,
        human(map.space.metadata),
        map.space.tree_blocks,
        human(u64::from(map.nodesize))
    )
}

fn notes(map: &Map) -> Vec<String> {
    let sample = map.sample.map(|sample| {
        format!(
            "Sharing, compression and paths are estimates from {} data extents, one of {}: all of them would not fit into the memory that was given.",
            sample.extents, sample.one_in
        )
    });
    sample.into_iter().chain(map.notes.iter().cloned()).collect()
}

/// All pictures as one SVG file, one below the other.
pub fn to_svg(map: &Map) -> String {
    const WIDTH: u32 = 1180;
    const LEFT: u32 = 40;
    let mut body = String::new();
    let mut y = 50;
    let text = |body: &mut String, y: u32, class: &str, text: &str| {
        let _ = write!(body, "<text x=\"{LEFT}\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(text));
    };
    text(&mut body, y, "t", &title(map));
    y += 24;
    text(&mut body, y, "d", &facts(map));
    for note in notes(map).iter().take(NOTES_MAX) {
        y += 20;
        text(&mut body, y, "s", &format!("Note: {}", crate::text::shortened(note, 170)));
    }
    y += 40;
    // Squares go two to a row.
    let mut beside: Option<u32> = None;
    for picture in pictures(map) {
        let is_square = picture.id.starts_with("space-");
        let (x, top) = match beside.take() {
            Some(row) if is_square => (LEFT + 560, row),
            Some(_) | None => (LEFT, y),
        };
        let _ = write!(
            body,
            "<text x=\"{x}\" y=\"{}\" class=\"t\">{}</text><svg x=\"{x}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>{}</svg>",
            top + 20,
            escaped(&picture.title),
            top + 32,
            picture.width,
            picture.height,
            picture.width,
            picture.height,
            escaped(&picture.title),
            escaped(&picture.about),
            picture.body,
            id = picture.id
        );
        let bottom = top + 32 + picture.height + 40;
        if is_square && x == LEFT {
            beside = Some(top);
        }
        y = y.max(bottom);
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" \
         lang=\"en\"><title>{}</title><desc>{}</desc><style>{STYLE}</style>{body}</svg>\n",
        escaped(&title(map)),
        escaped(&facts(map))
    )
}

/// The width above which a narrow screen would make labels too small to read.
const WIDE: u32 = 600;

/// The style sheet of pages.
const PAGE_STYLE: &str = include_str!("../../assets/map-page.css");

/// All pictures as one HTML page, each with its numbers in a table behind it.
pub fn to_html(map: &Map) -> String {
    let pictures = pictures(map);
    let title = escaped(&title(map));
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
         <meta name=\"referrer\" content=\"no-referrer\"><title>{title}</title><style>{STYLE}</style><style>{PAGE_STYLE}</style></head>\n<body>\
         <a class=\"skip\" href=\"#main\">To the pictures</a><h1>{title}</h1><p>{}</p>",
        escaped(&facts(map))
    );
    let notes = notes(map);
    if !notes.is_empty() {
        html.push_str("<ul>");
        for note in notes.iter().take(NOTES_MAX) {
            let _ = write!(html, "<li>{}</li>", escaped(note));
        }
        html.push_str("</ul>");
    }
    html.push_str("<nav aria-label=\"Pictures\"><ul>");
    for picture in &pictures {
        let _ = write!(html, "<li><a href=\"#{}\">{}</a></li>", picture.id, escaped(&picture.title));
    }
    html.push_str("</ul></nav>\n<main id=\"main\">");
    let mut in_squares = false;
    for picture in &pictures {
        let is_square = picture.id.starts_with("space-");
        if is_square != in_squares {
            html.push_str(if is_square { "<div class=\"squares\">" } else { "</div>" });
            in_squares = is_square;
        }
        section(&mut html, picture);
    }
    html.push_str("</main></body></html>\n");
    html
}

fn section(html: &mut String, picture: &Picture) {
    let Picture { id, title, about, width, height, body, tables } = picture;
    let (title, about) = (escaped(title), escaped(about));
    // Labels of a wide picture stay legible on a narrow screen, where the picture scrolls.
    let (before, after) = match *width > WIDE {
        true => (format!("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">"), "</div>"),
        false => (String::new(), ""),
    };
    let _ = write!(
        html,
        "<section id=\"{id}\" aria-labelledby=\"{id}-h\"><h2 id=\"{id}-h\">{title}</h2><p>{about}</p>{before}\
         <svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{about}</desc>{body}</svg>{after}"
    );
    if !tables.is_empty() {
        let _ = write!(html, "<details><summary>{title} in numbers</summary>");
        for table in tables {
            self::table(html, table);
        }
        html.push_str("</details>");
    }
    html.push_str("</section>\n");
}

fn table(html: &mut String, table: &Table) {
    let caption = escaped(&table.caption);
    let _ = write!(
        html,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption>{caption}</caption><thead><tr>"
    );
    for head in &table.head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(head));
    }
    html.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escaped(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    if table.left_out > 0 {
        let _ = write!(html, "<p>{} more are left out.</p>", table.left_out);
    }
    html.push_str("</div>");
}
