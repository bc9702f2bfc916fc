//! Human-readable figures.

/// About three digits that count, with separators: `61,230`, `4.57`, `0.0123`.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    match size {
        0.0 => "0".to_owned(),
        _ if size >= 99.95 => separated(value),
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 => format!("{value:.2}"),
        _ if size >= 0.000_1 => {
            let digits = (-size.log10().floor()) as usize + 2;
            bare(&format!("{value:.digits$}")).to_owned()
        }
        _ => format!("{value:.1e}"),
    }
}

/// An exact figure, such as one at an axis: `1`, `0.01`.
pub(super) fn exact(value: f64) -> String {
    bare(&figure(value)).to_owned()
}

/// An exact time: `10 ms`.
pub(super) fn exact_us(us: f64) -> String {
    let time = time_us(us);
    let (value, unit) = time.split_once(' ').unwrap_or((&time, ""));
    format!("{} {unit}", bare(value))
}

fn bare(figure: &str) -> &str {
    match figure.contains('.') && !figure.contains('e') {
        true => figure.trim_end_matches('0').trim_end_matches('.'),
        false => figure,
    }
}

/// A whole number, such as `1,234,567`.
pub(super) fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// A number with its noun, in singular or plural: `1 lock`, `2 locks`.
pub(crate) fn counted(value: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(value), if value == 1 { one } else { several })
}

/// A time, in the unit that suits it.
pub(super) fn time_us(us: f64) -> String {
    let (value, unit) = match us.abs() {
        size if size < 999.5 => (us, "µs"),
        size if size < 999_500.0 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", figure(value))
}

/// How long something took, as it is said: `8 ms`, `2.1 s`, `2 min 31 s`.
pub(super) fn time_s(seconds: f64) -> String {
    match seconds.abs() {
        size if !size.is_finite() => "–".to_owned(),
        size if size < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        size if size < 9.95 => format!("{seconds:.1} s"),
        size if size < 59.5 => format!("{seconds:.0} s"),
        _ => {
            let whole = seconds.round() as u64;
            let (minutes, seconds) = (whole / 60, whole % 60);
            match seconds {
                0 => format!("{minutes} min"),
                _ => format!("{minutes} min {seconds} s"),
            }
        }
    }
}

/// A traffic, in decimal units as networks are measured.
pub(super) fn bytes_per_minute(bytes: f64) -> String {
    match bytes {
        few if few < 999.5 => format!("{few:.0} B/min"),
        some if some < 999_500.0 => format!("{:.1} kB/min", some / 1e3),
        many => format!("{:.1} MB/min", many / 1e6),
    }
}

/// A size, in binary units.
pub(super) fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = (bytes.max(1.0).log2() / 10.0).floor().clamp(0.0, 4.0) as usize;
    format!("{} {}", figure(bytes / 1024_f64.powi(step as i32)), UNITS[step])
}

/// At most `most` characters; the middle of a longer text is left out, since both ends of an address
/// matter most.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let tail = (most - 1) / 3;
    let head = most - 1 - tail;
    letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - tail..]).collect()
}

/// With a capital first letter.
pub(super) fn upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn separated(value: f64) -> String {
    let whole = format!("{:.0}", value.abs());
    format!("{}{}", if value < 0.0 { "-" } else { "" }, grouped(&whole))
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_about_three_digits_that_count() {
        let cases = [
            (0.0, "0"),
            (1_234_567.4, "1,234,567"),
            (99.96, "100"),
            (45.678, "45.7"),
            (9.996, "10.0"),
            (1.0, "1.00"),
            (0.5, "0.5"),
            (0.012_345, "0.0123"),
            (0.000_001, "1.0e-6"),
            (-2_500.0, "-2,500"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text, "{value}");
        }
    }

    #[test]
    fn ticks_have_no_zeros_that_say_nothing() {
        assert_eq!(
            [0.01, 1.0, 10.0, 300.0, 10_000.0].map(exact),
            ["0.01", "1", "10", "300", "10,000"]
        );
        assert_eq!([10.0, 1_000.0, 5_000_000.0].map(exact_us), ["10 µs", "1 ms", "5 s"]);
    }

    #[test]
    fn times_and_sizes_take_the_unit_that_suits() {
        assert_eq!(time_us(12.0), "12.0 µs");
        assert_eq!(time_us(999.9), "1.00 ms");
        assert_eq!(time_us(3_200_000.0), "3.20 s");
        let times = [0.008_19, 0.999, 2.014, 12.4, 150.6, 120.2].map(time_s);
        assert_eq!(times, ["8 ms", "999 ms", "2.0 s", "12 s", "2 min 31 s", "2 min"]);
        let traffic = [12.3, 1_633.0, 2_500_000.0].map(bytes_per_minute);
        assert_eq!(traffic, ["12 B/min", "1.6 kB/min", "2.5 MB/min"]);
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1536.0), "1.50 KiB");
        assert_eq!(bytes(17_179_869_184.0), "16.0 GiB");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("redis", 10), "redis");
        assert_eq!(shortened("redis://server.example:6379", 12), "redis://…379");
        assert_eq!(shortened("äöüäöüäöü", 4), "äö…ü");
    }
}
