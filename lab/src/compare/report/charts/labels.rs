//! Where the names of points go, so that none lies on another.

/// A name to place.
pub(super) struct Wanted {
    /// The point it belongs to.
    pub(super) at: (i32, i32),
    pub(super) width: i32,
    pub(super) height: i32,
    /// What is drawn there: no name may lie on it.
    pub(super) mark: Space,
}

/// Left, top, right, bottom.
pub(super) type Space = (i32, i32, i32, i32);

/// The spaces of the names, in their order; `gap` is kept free between each and its mark.
///
/// Each takes the cheapest place around its point, given all others; repeated until none moves.
pub(super) fn place(names: &[Wanted], bounds: Space, gap: i32) -> Vec<Space> {
    let candidates: Vec<Vec<Space>> = names.iter().map(|name| candidates(name, gap)).collect();
    let mut chosen: Vec<usize> = vec![0; names.len()];
    for _ in 0..12 {
        let mut moved = false;
        for name in 0..names.len() {
            let cost = |candidate: usize| {
                let space = candidates[name][candidate];
                let others = (0..names.len()).filter(|other| *other != name);
                let on_names: i64 = others
                    .clone()
                    .map(|other| shared(space, candidates[other][chosen[other]]))
                    .sum();
                let on_marks: i64 = names.iter().map(|name| shared(space, name.mark)).sum();
                // Next to another point's mark, a name seems to be that point's.
                let gap = apart(space, names[name].mark);
                let height = names[name].height;
                let mistaken = others
                    .filter(|other| apart(space, names[*other].mark) <= gap + height / 4)
                    .count() as i64;
                let outside = area(space) - shared(space, bounds);
                // A place further away is worse only by itself: any collision outweighs it.
                1000 * (on_names + on_marks + 2 * outside) + 30 * mistaken + candidate as i64
            };
            let best = (0..candidates[name].len()).min_by_key(|candidate| cost(*candidate));
            let best = best.unwrap_or(0);
            moved |= best != chosen[name];
            chosen[name] = best;
        }
        if !moved {
            break;
        }
    }
    candidates.iter().zip(chosen).map(|(spaces, chosen)| spaces[chosen]).collect()
}

/// Next to the point, the following ones further away.
fn candidates(name: &Wanted, gap: i32) -> Vec<Space> {
    let (x, y) = name.at;
    let (left, top, right, bottom) = name.mark;
    let (width, height) = (name.width, name.height);
    let right = right + gap + width / 2;
    let left = left - gap - width / 2;
    let mut centres = vec![(right, y), (left, y)];
    for step in 0..12 {
        let up = top - gap / 2 - height / 2 - step * height * 2 / 3;
        let down = bottom + gap / 2 + height / 2 + step * height * 2 / 3;
        let aside = [x, right, left].into_iter();
        centres.extend(aside.flat_map(|x| [(x, up), (x, down)]));
    }
    let space = |(x, y)| (x - width / 2, y - height / 2, x + width / 2, y + height / 2);
    centres.into_iter().map(space).collect()
}

/// How far a name is from its mark.
pub(super) fn apart(space: Space, mark: Space) -> i32 {
    let across = (space.0 - mark.2).max(mark.0 - space.2).max(0);
    let down = (space.1 - mark.3).max(mark.1 - space.3).max(0);
    across.max(down)
}

fn area(space: Space) -> i64 {
    i64::from(space.2 - space.0) * i64::from(space.3 - space.1)
}

fn shared(one: Space, other: Space) -> i64 {
    let width = one.2.min(other.2) - one.0.max(other.0);
    let height = one.3.min(other.3) - one.1.max(other.1);
    if width <= 0 || height <= 0 { 0 } else { i64::from(width) * i64::from(height) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Space = (0, 0, 600, 400);

    fn wanted((x, y): (i32, i32)) -> Wanted {
        Wanted { at: (x, y), width: 90, height: 14, mark: (x - 6, y - 6, x + 6, y + 6) }
    }

    fn all_apart(points: &[(i32, i32)]) -> bool {
        let names: Vec<Wanted> = points.iter().map(|at| wanted(*at)).collect();
        let spaces = place(&names, BOUNDS, 4);
        let apart = |one: usize, other: usize| shared(spaces[one], spaces[other]) == 0;
        let inside = |space: &Space| shared(*space, BOUNDS) == area(*space);
        (0..spaces.len()).all(|one| (0..one).all(|other| apart(one, other)))
            && spaces.iter().all(inside)
    }

    #[test]
    fn ten_names_of_points_close_together_lie_apart() {
        let close: Vec<(i32, i32)> = (0..10).map(|at| (300 + at % 3, 200 + 3 * at)).collect();
        assert!(all_apart(&close));
        let same: Vec<(i32, i32)> = (0..6).map(|_| (590, 5)).collect();
        assert!(all_apart(&same), "in a corner too");
    }

    #[test]
    fn a_lone_name_stands_right_beside_its_point() {
        assert_eq!(place(&[wanted((100, 100))], BOUNDS, 4), [(110, 93, 200, 107)]);
    }
}
