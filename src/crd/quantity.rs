//! Kubernetes quantities, as far as storage sizes need them. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A quantity, such as `200m` or `512Mi`.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[schemars(inline)]
pub struct Amount(#[schemars(length(max = 32))] pub String);

/// The quantity in bytes, or `None` if it is invalid (`8Gb`, an empty string) or not above zero.
pub fn parse_positive(text: &str) -> Option<f64> {
    parse(text).filter(|value| *value > 0.0)
}

/// A number of bytes as a quantity: in the largest binary unit of which it is a multiple.
pub fn text(bytes: f64) -> String {
    let units = ["Pi", "Ti", "Gi", "Mi", "Ki"];
    let scaled = units.iter().zip((1..=5).rev()).find_map(|(unit, power)| {
        let scaled = bytes / 1024f64.powi(power);
        (scaled >= 1.0 && scaled.fract() == 0.0).then(|| format!("{scaled}{unit}"))
    });
    scaled.unwrap_or_else(|| format!("{bytes:.0}"))
}

/// The quantity, or `None` if it is invalid (`8Gb`, an empty string) or below zero.
///
/// The grammar is that of `k8s.io/apimachinery/pkg/api/resource.Quantity`: a decimal number with an optional
/// binary (`Ki` … `Ei`) or decimal (`m`, `k` … `E`) suffix, or a decimal exponent.
pub fn parse(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '+')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let scale = match suffix {
        "" => 1.0,
        "Ki" => 1024f64,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            10f64.powi(digits.parse().ok()?)
        }
    };
    let value = number.strip_prefix('+').unwrap_or(number).parse::<f64>().ok()? * scale;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_positive, text};

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("8Gi", Some(8_589_934_592.0)),
            ("500Mi", Some(524_288_000.0)),
            ("1.5Gi", Some(1_610_612_736.0)),
            ("10G", Some(1e10)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("8Gb", None),
            ("8 Gi", None),
            ("", None),
            ("Gi", None),
            ("0", None),
            ("-1Gi", None),
            ("1e", None),
            ("inf", None),
        ] {
            assert_eq!(parse_positive(text), bytes, "{text}");
        }
        for (bytes, expected) in
            [(8_589_934_592.0, "8Gi"), (1_610_612_736.0, "1536Mi"), (1024.0, "1Ki"), (1000.0, "1000"), (0.5, "0")]
        {
            assert_eq!(text(bytes), expected);
        }
        assert_eq!((parse("0"), parse("0.1"), parse("-1")), (Some(0.0), Some(0.1), None));
    }
}
